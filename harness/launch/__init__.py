"""Starting the ranks of an attempt: warm (forked from a preloaded process) or cold (a command), with one keeper each."""
