"""What buffers tell of themselves: logs, statistics, and the rows that left."""
