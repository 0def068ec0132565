"""Physics-informed surrogate for the latency of LLM serving engines.

Data flows one way through the sub-packages, and imports follow it:

    specs <- files <- physics <- kernels <- coefficients <- simulator <- data <- trust
          <- training <- evaluation <- export <- planning <- research <- cli
"""
