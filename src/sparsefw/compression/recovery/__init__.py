"""What a smaller network gets back without retraining: BatchNorm statistics, moments, weights fitted in closed form."""
