"""What all experiments share: a command line, paired arms, resumed runs."""
