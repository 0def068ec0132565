module example.com/pinn/export/go/blis

go 1.23

require (
	example.com/pinn/export/go/pinn v0.0.0
	github.com/inference-sim/inference-sim v0.0.0
)

replace example.com/pinn/export/go/pinn => ../pinn

// A small model of its engine, for tests; drop this line, and 'go get' a version, for BLIS itself.
replace github.com/inference-sim/inference-sim => ../../../tests/export/blis_engine/simulator
