"""What the user may say: strict, frozen, without torch."""
