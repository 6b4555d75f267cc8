"""A report's results: its summary (`summary`), the row of each key (`keys`), the rows of a summary and their reader
(`rows`), and the files of a report (`files`)."""
