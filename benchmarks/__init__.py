"""Speed, as ratios between contenders in one run; every bench checks first that its results are exact."""
