"""Values that come from other processes: how they are read, and whose pickles are trusted."""
