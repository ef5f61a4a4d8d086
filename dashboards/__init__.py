"""What people look at: templates that only format, and the style sheet and scripts beside them."""
