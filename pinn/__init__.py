"""Physics-informed surrogate for the latency of LLM serving engines.

Data flows one way through the sub-packages, and imports follow it:

    specs <- remembered <- physics <- sources <- kernels <- observations <- features
          <- embedding <- network <- coefficients <- latency <- workloads <- simulator
          <- calibration <- teacher <- training <- evaluation <- uncertainty <- report
          <- export <- experiments <- cli
"""
