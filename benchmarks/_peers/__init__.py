"""Other systems that give one process a role, and ours, killed side by side in one run.

    rivals     which are available, how each server is started, and which settings to try, from the smallest
       |
    ladder     the smallest setting without a wrong expiry while every core is busy
       |
    contest    three contenders of one rival: kill the holder of the role; how long there is none
       |  a process each
    contender  campaigns, holds, notes when it began; by   etcd   zookeeper   redis_lock
    ours       the same questions to a group of ours

A takeover ends when the next process knows that it holds the role, by its own reading of the host's clock. Used in this
way, none of the three returns a fencing token with the role. In addition, a lock in Redis is lost with its Redis, and
waiting processes get it in no order. All three are measured in the way their own recipes use them.
"""
