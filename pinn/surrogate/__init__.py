"""The network: ``step time = beta(model, GPU, engine) . features(batch)``.

A deployment passes these modules in order:

- ``featurizer``: features of a deployment and datasheet rates, the network's inputs;
- ``network``: the network, ``CoefficientNetwork``, and its loss, as it is trained and exported;
- ``architecture``: its layers and forward pass, for torch and numpy, and its weights in numpy;
  ``checkpoint``: its file;
- ``step_features``, ``request_features``: the registries that order beta and alpha;
  ``deployment_features`` adds drafting and verifying to a step;
- ``coefficients``, ``coefficient_set``: named alpha and beta, and their file;
- ``surrogate``: a checkpoint ready to predict;
- ``uncertainty``: intervals, distance from the training data, and trust in words.
"""
