module example.com/pinn/export/go/blis

go 1.23

require (
	example.com/pinn/export/go/pinn v0.0.0
	github.com/inference-sim/inference-sim v0.0.0
)

replace example.com/pinn/export/go/pinn => ../pinn

// The signatures alone; remove this line, and 'go get' a version, to build against BLIS itself.
replace github.com/inference-sim/inference-sim => ./simulator
