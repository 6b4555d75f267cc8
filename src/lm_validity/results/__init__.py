"""A report's results: what a row is (`rows`), how rows are put and found (`put`), what a page makes of them
(`sections`), and the files of a report (`files`)."""
