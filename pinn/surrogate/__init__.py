"""Network that predicts coefficients: ``step time = beta(model, GPU, engine) . features(batch)``.

A deployment passes these modules in order:

- ``featurizer``: features of a deployment and rates of its GPU, the inputs of the network;
- ``network``: the network that is trained and exported, ``CoefficientNetwork``, and its loss;
- ``architecture``: the network's layers and forward pass, for torch and numpy, and its weights in
  numpy; ``checkpoint``: its file;
- ``step_features``, ``request_features``: the lists of features that define the order of step
  coefficients (beta) and request coefficients (alpha); ``deployment_features`` adds drafting and
  verifying to a step;
- ``coefficients``, ``coefficient_set``: named alpha and beta, and their file;
- ``surrogate``: a checkpoint that is ready to predict;
- ``uncertainty``: intervals, distance from the training data, and sentences about both.
"""
