// Command client is the official Go client against a router: client PART.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"
)

const model = "dsv4"

var (
	background = context.Background()
	client     = openai.NewClient() // address and key are in the environment
	weather    = openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name: "weather", Description: openai.String("Tells the weather."),
		Parameters: shared.FunctionParameters{
			"type": "object",
			"properties": map[string]any{
				"城市":   map[string]any{"enum": []string{"北京", "Zürich"}},
				"days": map[string]any{"type": "integer", "minimum": 1, "maximum": 7},
			},
			"required": []string{"城市", "days"},
		},
	})
)

func main() {
	parts := map[string][]func() error{"answers": {models, plain, tools, bound, refusals, leaving}, "broken": {broken}}
	names := map[string][]string{"answers": {"models", "plain", "tools", "bound", "refusals", "leaving"}, "broken": {"broken"}}
	for i, part := range parts[os.Args[1]] {
		if err := part(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", names[os.Args[1]][i], err)
			os.Exit(1)
		}
		fmt.Println(names[os.Args[1]][i], "ok")
	}
}

// must turns a condition that does not hold into an error.
func must(holds bool, why ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("want otherwise: %v", why)
}

func ask(text string, limit int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}, MaxTokens: openai.Int(limit),
	}
}

func models() error {
	page, err := client.Models.List(background)
	if err != nil {
		return err
	}
	one, err := client.Models.Get(background, model)
	if err != nil {
		return err
	}
	return must(len(page.Data) == 1 && page.Data[0].ID == model && one.ID == model, page)
}

// accumulate reads a whole stream with the client's own accumulator.
func accumulate(p openai.ChatCompletionNewParams) (*openai.ChatCompletionAccumulator, int, error) {
	stream := client.Chat.Completions.NewStreaming(background, p)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	usages := 0
	for stream.Next() {
		chunk := stream.Current()
		if chunk.JSON.Usage.Valid() {
			usages++
		}
		if !all.AddChunk(chunk) {
			return nil, 0, errors.New("a chunk does not fit the ones before")
		}
	}
	return &all, usages, stream.Err()
}

func plain() error {
	p := ask("Tell me.", 40)
	whole, err := client.Chat.Completions.New(background, p)
	if err != nil {
		return err
	}
	said := whole.Choices[0]
	for _, usage := range []bool{true, false} {
		p := ask("Tell me.", 40)
		want := 0
		if usage {
			p.StreamOptions.IncludeUsage, want = openai.Bool(true), 1
		}
		all, usages, err := accumulate(p)
		if err != nil {
			return err
		}
		got := all.Choices[0]
		if err := must(got.Message.Content == said.Message.Content && got.FinishReason == said.FinishReason && usages == want, got, usages); err != nil {
			return err
		}
		if err := must(!usage || all.Usage.TotalTokens == whole.Usage.TotalTokens, all.Usage); err != nil {
			return err
		}
	}
	once := openai.CompletionNewParams{Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once")}, MaxTokens: openai.Int(12)}
	text, err := client.Completions.New(background, once)
	if err != nil {
		return err
	}
	var pieces strings.Builder
	stream := client.Completions.NewStreaming(background, once)
	defer stream.Close()
	for stream.Next() {
		pieces.WriteString(stream.Current().Choices[0].Text)
	}
	return errors.Join(stream.Err(), must(pieces.String() == text.Choices[0].Text, pieces.String()))
}

func tools() error {
	p := ask("Weather?", 400)
	p.Tools = []openai.ChatCompletionToolUnionParam{weather}
	p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	whole, err := client.Chat.Completions.New(background, p)
	if err != nil {
		return err
	}
	calls := whole.Choices[0].Message.ToolCalls
	if err := must(whole.Choices[0].FinishReason == "tool_calls" && len(calls) > 0, whole.RawJSON()); err != nil {
		return err
	}
	all, _, err := accumulate(p)
	if err != nil {
		return err
	}
	again := all.Choices[0].Message.ToolCalls
	if err := must(len(again) == len(calls) && all.Choices[0].FinishReason == "tool_calls", again); err != nil {
		return err
	}
	for i, call := range calls {
		var arguments struct {
			City string `json:"城市"`
			Days int    `json:"days"`
		}
		if err := json.Unmarshal([]byte(call.Function.Arguments), &arguments); err != nil {
			return err
		}
		good := call.Function.Name == "weather" && arguments.Days >= 1 && arguments.Days <= 7 && (arguments.City == "北京" || arguments.City == "Zürich")
		if err := must(good && again[i].Function.Arguments == call.Function.Arguments && again[i].Function.Name == "weather", call.RawJSON()); err != nil {
			return err
		}
	}
	p.ParallelToolCalls = openai.Bool(false)
	one, err := client.Chat.Completions.New(background, p)
	if err != nil {
		return err
	}
	if err := must(len(one.Choices[0].Message.ToolCalls) == 1, one.RawJSON()); err != nil {
		return err
	}
	after := ask("Weather?", 9)
	after.Messages = append(after.Messages, whole.Choices[0].Message.ToParam())
	for _, call := range calls {
		after.Messages = append(after.Messages, openai.ToolMessage("晴", call.ID))
	}
	said, err := client.Chat.Completions.New(background, after)
	if err != nil {
		return err
	}
	return must(said.Choices[0].Message.Content != "", said.RawJSON())
}

func bound() error {
	p := ask("Plan.", 600)
	p.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "plan", Strict: openai.Bool(true), Schema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"title": map[string]any{"type": "string"}, "steps": map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "minItems": 1}},
			"required":   []string{"title", "steps"}, "additionalProperties": false,
		}},
	}}
	whole, err := client.Chat.Completions.New(background, p)
	if err != nil {
		return err
	}
	var plan struct {
		Title string
		Steps []string
	}
	if err := json.Unmarshal([]byte(whole.Choices[0].Message.Content), &plan); err != nil {
		return err
	}
	return must(plan.Title != "" && len(plan.Steps) > 0, whole.RawJSON())
}

// refused sends a request that must fail at once.
func refused(p openai.ChatCompletionNewParams, status int, param, code string) error {
	_, err := client.Chat.Completions.New(background, p, option.WithMaxRetries(0))
	e, ok := errors.AsType[*openai.Error](err)
	if !ok {
		return fmt.Errorf("want an API error, got %v", err)
	}
	return must(e.StatusCode == status && e.Param == param && e.Code == code && e.Message != "" && e.Response.Header.Get("X-Request-Id") != "", e.RawJSON())
}

func refusals() error {
	two := ask("a", 4)
	two.N = openai.Int(2)
	other := ask("a", 4)
	other.Model = "another"
	odd := ask("a", 4)
	odd.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name: "f", Parameters: shared.FunctionParameters{"not": map[string]any{}},
	})}
	var answer *http.Response
	_, err := client.Chat.Completions.New(background, ask("a", 1), option.WithHeader("X-Request-Id", "mine-1"), option.WithResponseInto(&answer))
	if err == nil {
		err = must(answer.Header.Get("X-Request-Id") == "mine-1", answer.Header)
	}
	return errors.Join(
		err,
		refused(two, 400, "n", "unsupported"),
		refused(other, 404, "model", "model_not_found"),
		refused(ask("a", 600000), 400, "max_tokens", "context_length_exceeded"),
		refused(odd, 400, "tools[0].function.parameters.not", "unsupported"),
	)
}

func long(ctx context.Context, text string, retries int) *ssestream.Stream[openai.ChatCompletionChunk] {
	return client.Chat.Completions.NewStreaming(ctx, ask(text, 4000), option.WithJSONSet("ignore_eos", true), option.WithMaxRetries(retries))
}

func leaving() error {
	ctx, leave := context.WithCancel(background)
	defer leave()
	for i := range 4 {
		stream := long(ctx, fmt.Sprint("long ", i), 2)
		if !stream.Next() {
			return fmt.Errorf("no first chunk: %w", stream.Err())
		}
		defer stream.Close()
	}
	_, err := client.Chat.Completions.New(background, ask("a", 4), option.WithMaxRetries(0))
	e, ok := errors.AsType[*openai.Error](err)
	if !ok || e.StatusCode != 503 || e.Response.Header.Get("Retry-After") != "1" {
		return fmt.Errorf("want 503 with Retry-After, got %v", err)
	}
	leave()
	_, err = client.Chat.Completions.New(background, ask("next", 4), option.WithMaxRetries(8))
	return err
}

func broken() error {
	stream := long(background, "long", 0)
	defer stream.Close()
	begun, finish := false, ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			if c.Delta.Content != "" && !begun {
				begun = true
				fmt.Println("streaming")
			}
			finish += c.FinishReason
		}
	}
	if stream.Err() == nil {
		return errors.New("a broken stream ended like a whole one")
	}
	return must(finish == "" && strings.Contains(stream.Err().Error(), "pd_decode_error"), finish, stream.Err())
}
