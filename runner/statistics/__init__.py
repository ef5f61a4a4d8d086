"""What counts of failures support: comparisons, stopping, change-points, controls; pure."""
