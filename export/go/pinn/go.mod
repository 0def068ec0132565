module example.com/pinn/export/go/pinn

go 1.23
