// Package redisconn opens clients of Redis that behave as the buffer needs it.
package redisconn

import (
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	// dialTimeout bounds connecting, TLS and authentication included. A call's
	// own deadline cuts it short.
	dialTimeout = 2 * time.Second
	// answerTimeout is after how long without an answer a connection is given
	// up; all that waits on it fails then. Nothing that Stowage asks takes a
	// tenth of a second.
	answerTimeout = 5 * time.Second
	// topologyInterval is how often the sentinels are asked for the primary.
	// Without it one message that is missed would bind the client to the old one
	// until it is restarted.
	topologyInterval = 5 * time.Second
)

// Open connects to what reach names: one server, seeds of a cluster (several
// addresses, or one that says so itself), or the sentinels of a master set. Of
// reach only addresses, users, passwords and TLS count; the rest is set here.
// The name is how Redis lists the connections (CLIENT LIST).
//
// The client repeats nothing: what failed may have been executed, and only the
// caller knows what that would mean. It has no ConnLifetime for the same
// reason: rueidis repeats whatever was under way on a connection that ends its
// life, increments included.
func Open(reach rueidis.ClientOption, name string) (rueidis.Client, error) {
	option := rueidis.ClientOption{
		InitAddress:      reach.InitAddress,
		Username:         reach.Username,
		Password:         reach.Password,
		TLSConfig:        reach.TLSConfig,
		Sentinel:         reach.Sentinel,
		ClientName:       name,
		ConnWriteTimeout: answerTimeout,
		// One connection to a node, as a cluster's client has, and not up to four: what
		// several callers ask at once goes in one write, and wakes Redis once.
		PipelineMultiplex: -1,
		DisableRetry:      true,
		DisableCache:      true, // needs CLIENT TRACKING of every connection, for nothing: no value is read twice
	}
	option.Dialer.Timeout = dialTimeout
	option.Sentinel.Dialer.Timeout = dialTimeout
	option.Sentinel.ClientName = name
	option.Sentinel.TopologyRefreshInterval = topologyInterval
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", strings.Join(option.InitAddress, ", "), explain(err))
	}
	return client, nil
}

// explain says what to do about the answer of a server that is in no cluster.
func explain(err error) error {
	if rueidisErr, ok := rueidis.IsRedisErr(err); ok && strings.Contains(rueidisErr.Error(), "cluster support disabled") {
		return fmt.Errorf("several addresses are seeds of a cluster, and this is none: name one server, or the sentinels of a master set: %w", err)
	}
	return err
}
