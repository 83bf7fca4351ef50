"""Finds by measurement what a drafter's config does not say, or says wrongly."""
