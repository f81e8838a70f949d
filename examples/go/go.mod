module neli

go 1.24
