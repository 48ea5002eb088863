"""From a plan to what a framework needs to run it: one file a framework, and the placement that they share."""
