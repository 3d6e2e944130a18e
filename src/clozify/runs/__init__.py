"""What a run is and where it is kept."""
