module example.com/pinn/export/go/onnx

go 1.23

require github.com/yalue/onnxruntime_go v1.13.0
