// A member of a share group that uses franz-go: it accepts records until it has as many as it was told, and prints each
// delivery. A value that begins with "release" is released at its first delivery; one that begins with "renew" is
// renewed before it is accepted.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, group, topic := os.Args[1], os.Args[2], os.Args[3]
	wanted, err := strconv.Atoi(os.Args[4])
	fail(err)
	options := []kgo.Opt{
		kgo.SeedBrokers(servers),
		kgo.ShareGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ShareMaxRecords(10),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			for _, each := range results {
				if each.Err != nil {
					fmt.Println("fault", each.Err)
				}
			}
		}),
	}
	if os.Args[5] == "record_limit" {
		options = append(options, kgo.ShareMaxRecordsStrict())
	}
	client, err := kgo.NewClient(options...)
	fail(err)
	defer client.Close()
	ctx := context.Background()
	for accepted := 0; accepted < wanted; {
		fetches := client.PollRecords(ctx, 10)
		fetches.EachError(func(_ string, _ int32, err error) { fail(err) })
		fetches.EachRecord(func(record *kgo.Record) {
			value := string(record.Value)
			fmt.Println(value, record.DeliveryCount())
			if strings.HasPrefix(value, "release") && record.DeliveryCount() == 1 {
				record.Ack(kgo.AckRelease)
				return
			}
			if strings.HasPrefix(value, "renew") {
				record.Ack(kgo.AckRenew)
				fail(client.FlushAcks(ctx))
			}
			record.Ack(kgo.AckAccept)
			accepted++
		})
		fail(client.FlushAcks(ctx))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
