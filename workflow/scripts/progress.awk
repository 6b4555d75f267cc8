# Of what Snakemake prints to a pipe: the number of jobs, every tenth of the steps, and what fails, of its log the end.
/^Job stats:/ { table = 1 }
table && !/^total/ { next }
/^total/ { table = 0; print "jobs:", $2; next }
# A job that begins: its name, and what is indented below it.
/^((local)?(rule|checkpoint) |Job [0-9]|group job)/ { begins = 1; next }
begins && /^ / { next }
{ begins = 0 }
/^(Using |Assuming |Building |Provided |Rules claiming|Conda |Select jobs|Execute [0-9]|Finished jobid|\[[A-Z][a-z][a-z] [A-Z]|$)/ { next }
/ steps \([0-9]+%\) done/ { match($0, /[0-9]+%/); part = int(substr($0, RSTART) / 10); if (part == last) next; last = part }
{ print; fflush() }
