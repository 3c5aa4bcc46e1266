"""Recovery without retraining: BatchNorm statistics, moments, weights fitted in closed form."""
