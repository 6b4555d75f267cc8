"""A report's results: rows, how they are put and found (`put`), what a page makes of them, and the files of a report
(`sections`)."""
