"""What the model is compared with: Davenport's estimator, and the simple baselines that any reader asks for."""
