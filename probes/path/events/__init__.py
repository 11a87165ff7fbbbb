"""Events of path tracing: findings of one cause, folded into one line each."""
