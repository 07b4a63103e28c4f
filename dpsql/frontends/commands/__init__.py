"""Commands of ``dpsql``: a function each, in a module that is imported when the command is run."""
