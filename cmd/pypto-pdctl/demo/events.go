package demo

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ending is what is known of a chat once it is over.
type ending struct {
	first              time.Duration
	prompt, completion int
	finish             string
}

// printEvents prints the text of a chat stream and reads its end. A stream that
// breaks or carries an error is an error.
func printEvents(r io.Reader, stdout io.Writer, began time.Time) (ending, error) {
	var end ending
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 4<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return end, nil
		}
		var event struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
				FinishReason *string `json:"finish_reason"`
			} `json:"choices"`
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			} `json:"usage"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return end, fmt.Errorf("read stream event: %w", err)
		}
		if event.Error != nil {
			return end, errors.New("the stream reports: " + event.Error.Message)
		}
		if event.Usage != nil {
			end.prompt, end.completion = event.Usage.Prompt, event.Usage.Completion
		}
		for _, c := range event.Choices {
			if c.Delta.Content != "" && end.first == 0 {
				end.first = time.Since(began)
			}
			fmt.Fprint(stdout, c.Delta.Content)
			if c.FinishReason != nil {
				end.finish = *c.FinishReason
			}
		}
	}
	if err := lines.Err(); err != nil {
		return end, fmt.Errorf("read stream: %w", err)
	}
	return end, errors.New("the stream ended without [DONE]")
}
