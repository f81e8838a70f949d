// Command neli-ask waits until the host of an agent leads the partition of a key. It prints the owner and the lease.
//
//	neli-ask SOCKET KEY
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"neli/agent"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: neli-ask SOCKET KEY")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "neli-ask:", err)
		os.Exit(1)
	}
}

func run(socket, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, target := agent.New(socket), agent.Key(key)
	lease, err := client.Leadership(ctx, target, 30*time.Second)
	if err != nil {
		return err
	}
	owner, err := client.Owner(ctx, target)
	if err != nil {
		return err
	}
	table, err := client.Table(ctx)
	if err != nil {
		return err
	}
	layout, _ := table.Layout()
	fmt.Println(owner.Name, owner.Address, owner.Partition, owner.Term)
	fmt.Println(lease.Leads, lease.Partition == layout.Partition(key), lease.Term == owner.Term)
	return nil
}
