package pdrouter

import (
	"bytes"
	"html/template"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// page is the status page for people: what /health and /metrics/json say, as
// one table each. It needs nothing but the router itself.
func (r *Router) page(c *edge.Call) {
	v := r.pool.view()
	data := struct {
		Run, Boot, State string
		Up               time.Duration
		Pairs, Waiting   int
		Running          int
		Completed        int64
		Failed           int64
		Cancelled        int64
		Nodes            []nodeView
		Recent           []terminal
	}{
		Run: string(r.config.Run()), Boot: string(r.options.Boot), State: "serving",
		Up: time.Since(r.started).Round(time.Second), Pairs: v.Pairs, Waiting: v.Waiting, Nodes: v.Nodes,
	}
	switch {
	case r.draining.Load():
		data.State = "draining"
	case v.Pairs == 0:
		data.State = "no pair serves"
		if v.Mismatch != "" {
			data.State += ": " + v.Mismatch
		}
	}
	s := r.stats
	s.mu.Lock()
	data.Running = s.active
	data.Completed, data.Failed, data.Cancelled = s.states[stateCompleted], s.states[stateFailed], s.states[stateCancelled]
	data.Recent = append(slices.Clone(s.recent[s.next:]), s.recent[:s.next]...)
	s.mu.Unlock()
	slices.Reverse(data.Recent)
	data.Recent = data.Recent[:min(len(data.Recent), pageRecent)]
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, data); err != nil {
		panic("status page: " + err.Error()) // it is written into memory
	}
	c.SetHeader("Cache-Control", "no-store")
	c.SetHeader("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	c.Reply(200, "text/html; charset=utf-8", b.Bytes())
}

// pageRecent is how many ended generations the page shows.
const pageRecent = 20

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"ago":  func(nanos int64) time.Duration { return time.Since(time.Unix(0, nanos)).Round(time.Second) },
	"fine": func(state string) bool { return state == pd.Ready.String() || state == stateCompleted },
}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>PD router</title>
<style>
body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color-scheme:light dark}
table{border-collapse:collapse;width:100%;margin:1em 0}
th,td{text-align:left;padding:.3em .8em;border-bottom:1px solid #8884}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.bad{color:#c33;font-weight:600}.ok{color:#283}
code{font-size:12px}
</style>
<h1>PD router: <span class="{{if eq .State "serving"}}ok{{else}}bad{{end}}">{{.State}}</span></h1>
<p>run <code>{{.Run}}</code>, boot <code>{{.Boot}}</code>, up {{.Up}}.
{{.Pairs}} pairs serve, {{.Running}} requests run, {{.Waiting}} wait;
{{.Completed}} completed, {{.Failed}} failed, {{.Cancelled}} cancelled.</p>
<table><tr><th>role<th>node<th>boot<th>state<th>active<th>unconfirmed<th>capacity<th>reason</tr>
{{range .Nodes}}<tr><td>{{.Role}}<td>{{.Node}}<td><code>{{.Boot}}</code><td class="{{if fine .State}}ok{{else}}bad{{end}}">{{.State}}<td class="n">{{.Active}}<td class="n">{{.Unconfirmed}}<td class="n">{{.Capacity}}<td>{{.Reason}}</tr>
{{end}}</table>
<table><tr><th>request<th>state<th>code<th>prefill<th>decode<th>status<th>events<th>ago</tr>
{{range .Recent}}<tr><td><code>{{.Request}}</code><td class="{{if fine .State}}ok{{else}}bad{{end}}">{{.State}}<td>{{.Code}}<td>{{.Prefill}}<td>{{.Decode}}<td class="n">{{.Status}}<td class="n">{{.Events}}<td class="n">{{ago .Timestamp}}</tr>
{{end}}</table>
</html>
`))
