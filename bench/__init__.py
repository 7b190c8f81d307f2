"""Speed, measured: each bench states its figures as ratios against limits of the same run."""
