from drafts import *  # noqa: F403
