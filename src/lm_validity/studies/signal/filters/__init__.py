"""Filters of benchmark items: choose by item scores, subjects, lengths, text or verdicts; write the ids that
stay."""
