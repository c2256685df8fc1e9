"""A fuzzer of lading's Python front: random worlds on real ranks, against plain torch.

A *world* is a JSON document made from one integer (`draw.py`): a model, what is done to it before the load, how it is
sharded, which files there are and how they are loaded. `oracle.py` and everything it uses know nothing of lading;
`subject.py` alone imports it. docs/how-it-works/fuzzing.md says how to run it and how to read its report.
"""
