package pd

// PageHash names the content of one full page: it covers every token from the
// start of the prompt to the page's end, the model revision and the contract.
type PageHash [32]byte

// PrefixHashes are the page hashes of one prompt by page size in tokens: the
// i-th hash of size s covers the first (i+1)·s tokens. Only full pages have one.
type PrefixHashes map[int][]PageHash
