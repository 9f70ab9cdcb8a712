"""A device beside the CPU, and passes in graphs beside eager ones: are they the same, and how fast are they?"""
