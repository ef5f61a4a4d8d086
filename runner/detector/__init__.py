"""What sees how much of other threads' work goes into capture windows: C++, and what reads it."""
