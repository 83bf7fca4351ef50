"""Key/value pages: integers decide, pools store."""
