// Command neli-fold reads a copy of a ledger from standard input. It prints the digest of the state at its end.
package main

import (
	"errors"
	"fmt"
	"os"

	"neli"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "neli-fold:", err)
		os.Exit(1)
	}
}

func run() error {
	source, err := neli.OpenCopy(os.Stdin)
	if err != nil {
		return err
	}
	var router neli.Router
	err = router.CatchUp(source)
	_, digest := router.State()
	fmt.Println(digest)
	if source.Digest != "" && source.Digest != digest.String() {
		err = errors.Join(err, fmt.Errorf("the copy says %s", source.Digest))
	}
	return err
}
