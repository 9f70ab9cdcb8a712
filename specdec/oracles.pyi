from oracles import *  # noqa: F403
