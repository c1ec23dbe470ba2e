// Package openai runs the official OpenAI clients for Python, Node and Go
// against a router with its nodes: what they read, how they fail, and that
// leaving early leaves nothing behind. The clients are installed into a folder
// of the run; without the flag -openai.clients nothing is installed and nothing
// runs (make e2e-openai gives it).
package openai
