"""What a node tells monitoring: counted where things happen, made into text when somebody asks, a slice at a time."""
