"""What a run will hold on which device, planned before anything is loaded."""
