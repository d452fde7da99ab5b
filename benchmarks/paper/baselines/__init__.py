"""What the model is compared with: Davenport's estimator and simple baselines."""
