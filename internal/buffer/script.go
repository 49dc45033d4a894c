package buffer

import (
	"context"
	"crypto/sha1" // by which Redis names scripts
	"embed"
	"encoding/hex"
	"strings"

	"github.com/redis/rueidis"
)

//go:embed *.lua
var luaFiles embed.FS

// The scripts. Each file says what its keys, arguments and reply are.
var (
	emitScript       = newScript("", "emit.lua", "common.lua", "refuse.lua")
	claimScript      = newScript(evenWhenFull, "common.lua", "claim.lua")
	finishScript     = newScript(evenWhenFull, "common.lua", "finish.lua")
	forgetScript     = newScript(evenWhenFull, "common.lua", "forget.lua")
	quarantineScript = newScript(evenWhenFull, "common.lua", "quarantine.lua")
	releaseScript    = newScript(evenWhenFull, "common.lua", "release.lua")
	pendingScript    = newScript("", "common.lua", "pending.lua")
	sizesScript      = newScript("", "common.lua", "sizes.lua")
	restoreScript    = newScript(evenWhenFull, "common.lua", "restore.lua")
	nodeScript       = newScript("", "common.lua", "node.lua")
	asideScript      = newScript(evenWhenFull, "common.lua", "aside.lua")
	bucketScript     = newScript("", "common.lua", "bucket.lua")
)

// script is rueidis.Lua for many calls at once: Lua.ExecMulti first loads the
// script into every node, replicas too, so that one dead replica would stop
// every bucket.
type script struct{ text, sha string }

// call is one run of a script. Its keys are in one slot.
type call struct{ keys, args []string }

// evenWhenFull lets a script write although Redis has reached its maxmemory:
// draining is what frees the memory, so it must not be refused. Emitting is.
const evenWhenFull = "#!lua flags=allow-oom\n"

func newScript(shebang string, files ...string) script {
	texts := []string{shebang}
	for _, name := range files {
		texts = append(texts, read(name))
	}
	text := strings.Join(texts, "")
	sum := sha1.Sum([]byte(text))
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

func read(name string) string {
	text, err := luaFiles.ReadFile(name)
	if err != nil {
		panic(err) // the file is embedded: only a wrong name in this file gets here
	}
	return string(text)
}

// run makes all calls in one pipeline and answers in their order. It repeats a
// call only when Redis answered that it does not know the script. The commands
// are not marked as retryable, so rueidis repeats none that may have been
// executed; and not as read-only, so it sends none to a replica.
func (s script) run(ctx context.Context, client rueidis.Client, calls ...call) []rueidis.RedisResult {
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build()
	}
	results := client.DoMulti(ctx, commands...)
	s.runUnknown(ctx, client, calls, results)
	return results
}

func (s script) runUnknown(ctx context.Context, client rueidis.Client, calls []call, results []rueidis.RedisResult) {
	var again []int
	var commands rueidis.Commands
	for i, result := range results {
		if err, ok := rueidis.IsRedisErr(result.Error()); ok && err.IsNoScript() {
			again = append(again, i)
			c := calls[i]
			commands = append(commands, client.B().Eval().Script(s.text).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build())
		}
	}
	for i, result := range client.DoMulti(ctx, commands...) {
		results[again[i]] = result
	}
}

// one runs a script once.
func (s script) one(ctx context.Context, client rueidis.Client, keys, args []string) rueidis.RedisResult {
	return s.run(ctx, client, call{keys: keys, args: args})[0]
}
