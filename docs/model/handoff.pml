/* Page safety of a handoff: two handoffs compete for one page of decode.
 * They are alike, so the second begins after the first.
 *
 * What the words here are in Go:
 *
 *   dst[h]  D_NONE/D_WAIT   pd/handoff Decode Waiting     page not held
 *           D_RES           Reserved                      lease Constructing, no chunk
 *           D_ACKED         Transferring                  lease Constructing, a chunk acknowledged and unsettled
 *           D_USE           InUse                         lease InUse
 *           D_ABORTING      Aborting                      lease Constructing, waits for prefill's fact
 *           D_QUAR          Quarantined                   lease Quarantined, node gated
 *           D_END           Completed/Aborted             tombstone
 *   pst[h]  P_NONE..P_END   pd/handoff Prefill            Connecting+Reserving, Prefilling, Committing, Aborting, terminal
 *   fact[h]                 pd.StopFact of sealed owners
 *   fly[h]                  a write that the network, the sender's kernel or the target owner's inbox still holds
 *   ghost[h]                a hidden second attempt of the same write
 *   stale[h]                the target owner's engine (boot and fence epoch) that h was granted under is gone
 *
 * Calls may be lost, repeated and reordered (each direction holds up to two).
 * Prefill and decode crash and come back. A write lands at any time, also after
 * its verdict and after its sender's death, unless the engine it was addressed
 * to is gone.
 *
 * Build with -D of a mutation to see it fail; check.sh does all of it:
 *   NO_QUARANTINE FREE_AT_TIMEOUT DEATH_IS_PROOF FACT_FROM_ROUTER ACK_AT_RESERVE
 *   NO_SEAL PORT_REUSE HIDDEN_RETRY
 * NO_FENCE takes the fence away: then `opens` fails, which is expected: without
 * it, and without prefill's word, a gate stays.
 */

#define N 2
#define FREE 255
#ifndef CRASHES
#define CRASHES 1 /* of each node */
#endif
#ifndef FAULTS
#define FAULTS 1 /* lost or repeated calls */
#endif

mtype = { reserve, chunk, commit, abort_, granted, ack, refused, committed };
mtype = { D_NONE, D_RES, D_ACKED, D_USE, D_ABORTING, D_QUAR, D_END };
mtype = { P_NONE, P_RESERVING, P_HAVE, P_OFFERED, P_SENT, P_COMMITTING, P_ABORTING, P_END };
mtype = { F_NONE, F_NEVER, F_DONE, F_UNKNOWN };
mtype = { V_NONE, V_DONE, V_UNCERTAIN };

chan toD = [2] of { mtype, byte, mtype };
chan toP = [2] of { mtype, byte };

mtype dst[N] = D_NONE;
mtype pst[N] = P_NONE;
mtype fact[N] = F_NONE;
mtype verdict[N] = V_NONE;
bool post[N];    /* the router's POST of h is open at decode */
bool parked[N];  /* prefill's reservation waits for the POST */
bool tomb[N];
bool sealed[N];
bool fly[N];
bool ghost[N];
bool stale[N];   /* the engine under whose registry h was granted is gone: its writes go nowhere */
byte page = FREE;
byte crashesD = 0, crashesP = 0;
bool gate = false;
byte faults = 0;  /* lost and repeated calls so far */
hidden byte h; hidden mtype m, f; /* scratch within one atomic step */
bool bad = false; /* a write landed where it must not */

#define holds(h) (dst[h] == D_RES || dst[h] == D_ACKED || dst[h] == D_USE || dst[h] == D_ABORTING || dst[h] == D_QUAR)

inline release(h) {
	dst[h] = D_END; tomb[h] = true; post[h] = false; page = FREE;
}

inline regate() {
	gate = (dst[0] == D_QUAR || dst[1] == D_QUAR);
}

inline quarantine(h) {
#ifdef NO_QUARANTINE
	release(h);
#else
	dst[h] = D_QUAR;
#endif
	regate();
}

/* land: bytes of h arrive. NoFreeWithLiveWriter, NoWriteUnderTwoFences and
 * BootMatchesAtLanding in one: the page must still be held for h, and not yet be
 * read by its decode. */
inline land(h) {
	if
	:: !stale[h] ->
		if
		:: page != h || dst[h] == D_USE -> bad = true
		:: else -> skip
		fi
	:: else -> skip
	fi
}

inline takePage(h) {
	if
	:: page == FREE && !gate ->
		page = h; parked[h] = false; stale[h] = false;
		dst[h] = D_RES;
		toP!granted,h
	:: else ->
		tomb[h] = true; post[h] = false; parked[h] = false; dst[h] = D_END;
		toP!refused,h
	fi
}

/* Router and client: open the POST once, close it at any time, abort. */
active proctype R() {
	do
	:: atomic { dst[0] == D_NONE && !post[0] && !tomb[0] && nfull(toP) -> post[0] = true; if :: parked[0] -> takePage(0) :: else -> skip fi }
	:: atomic { dst[1] == D_NONE && !post[1] && !tomb[1] && (post[0] || dst[0] != D_NONE) && nfull(toP) -> post[1] = true; if :: parked[1] -> takePage(1) :: else -> skip fi }
	:: atomic { post[0] || post[1] ->
		if :: post[0] -> h = 0 :: post[1] -> h = 1 fi;
		post[h] = false;
		if
		:: dst[h] == D_NONE -> tomb[h] = true; dst[h] = D_END; parked[h] = false
		:: dst[h] == D_RES -> release(h)
		:: dst[h] == D_ACKED ->
#ifdef FACT_FROM_ROUTER
			release(h)
#else
			dst[h] = D_ABORTING
#endif
		:: dst[h] == D_USE -> release(h)
		:: else -> skip
		fi }
	od
}

/* Decode's control port and timers. */
active proctype D() {
	do
	:: atomic { nfull(toP) && nempty(toD) -> toD?m,h,f;
		if
		:: m == reserve && (tomb[h] || dst[h] == D_END) -> toP!refused,h
		:: m == reserve && dst[h] == D_NONE && post[h] -> takePage(h)
		:: m == reserve && dst[h] == D_NONE && !post[h] -> parked[h] = true
		:: m == reserve && dst[h] != D_NONE && dst[h] != D_END -> toP!granted,h
		:: m == chunk && dst[h] == D_RES -> dst[h] = D_ACKED; toP!ack,h
		:: m == chunk && dst[h] == D_ACKED -> toP!ack,h
		:: m == chunk && dst[h] != D_RES && dst[h] != D_ACKED -> toP!refused,h
		:: m == commit && dst[h] == D_ACKED -> dst[h] = D_USE; toP!committed,h
		:: m == commit && dst[h] == D_USE -> toP!committed,h
		:: m == commit && dst[h] != D_ACKED && dst[h] != D_USE -> toP!refused,h
		:: m == abort_ && f != F_UNKNOWN && (dst[h] == D_RES || dst[h] == D_ACKED || dst[h] == D_ABORTING || dst[h] == D_QUAR) -> release(h); regate()
		:: m == abort_ && f == F_UNKNOWN && (dst[h] == D_ACKED || dst[h] == D_ABORTING) -> quarantine(h)
		:: m == abort_ && f == F_UNKNOWN && dst[h] == D_RES -> release(h)
		:: m == abort_ && dst[h] == D_NONE -> tomb[h] = true; dst[h] = D_END; post[h] = false; parked[h] = false
		:: m == abort_ && (dst[h] == D_USE || dst[h] == D_END || (f == F_UNKNOWN && dst[h] == D_QUAR)) -> skip
		fi }
	/* the request is done */
	:: atomic { dst[0] == D_USE -> release(0) }
	:: atomic { dst[1] == D_USE -> release(1) }
	/* handoff_timeout: a wait ends, ownership does not */
	:: atomic { dst[0] == D_ABORTING || dst[1] == D_ABORTING ->
		if :: dst[0] == D_ABORTING -> h = 0 :: dst[1] == D_ABORTING -> h = 1 fi;
#ifdef FREE_AT_TIMEOUT
		release(h)
#else
		quarantine(h)
#endif
		}
	/* decode asks for prefill's fact; the same boot answers */
	:: atomic { (dst[0] == D_ABORTING || dst[0] == D_QUAR) && fact[0] != F_NONE && fact[0] != F_UNKNOWN -> release(0); regate() }
	:: atomic { (dst[1] == D_ABORTING || dst[1] == D_QUAR) && fact[1] != F_NONE && fact[1] != F_UNKNOWN -> release(1); regate() }
#ifdef DEATH_IS_PROOF
	:: atomic { dst[0] == D_QUAR && crashesP > 0 -> release(0); regate() }
	:: atomic { dst[1] == D_QUAR && crashesP > 0 -> release(1); regate() }
#endif
	od
}

/* The destination fence: the engine is gone, so is every write to it. */
#ifndef NO_FENCE
active proctype Fence() {
	do
	:: atomic { gate ->
		stale[0] = true; stale[1] = true;
		if :: dst[0] == D_QUAR -> release(0) :: dst[0] == D_ACKED || dst[0] == D_ABORTING -> release(0) :: else -> skip fi;
		if :: dst[1] == D_QUAR -> release(1) :: dst[1] == D_ACKED || dst[1] == D_ABORTING -> release(1) :: else -> skip fi;
		regate() }
	od
}
#endif

/* Prefill: one machine per handoff, one call in flight each. */
proctype P(byte i) {
	do
	:: atomic { pst[i] == P_NONE && nfull(toD) && (i == 0 || pst[0] != P_NONE) -> toD!reserve,i,F_NONE; pst[i] = P_RESERVING }
	:: atomic { pst[i] == P_HAVE && nfull(toD) -> toD!chunk,i,F_NONE; pst[i] = P_OFFERED }
	:: atomic { toP?[eval(granted),eval(i)] -> toP?eval(granted),eval(i);
#ifdef ACK_AT_RESERVE
		if :: pst[i] == P_RESERVING && !sealed[i] -> pst[i] = P_SENT; fly[i] = true; verdict[i] = V_NONE :: else -> skip fi
#else
		if :: pst[i] == P_RESERVING -> pst[i] = P_HAVE :: else -> skip fi
#endif
		}
	:: atomic { toP?[eval(ack),eval(i)] -> toP?eval(ack),eval(i);
		if
#ifdef NO_SEAL
		:: (pst[i] == P_OFFERED || pst[i] == P_ABORTING || pst[i] == P_END) && !fly[i] && verdict[i] == V_NONE -> fly[i] = true; if :: pst[i] == P_OFFERED -> pst[i] = P_SENT :: else -> skip fi
#else
		:: pst[i] == P_OFFERED && !sealed[i] -> pst[i] = P_SENT; fly[i] = true
#endif
		:: else -> skip
		fi }
	:: atomic { toP?[eval(refused),eval(i)] -> toP?eval(refused),eval(i);
		if :: pst[i] == P_RESERVING -> pst[i] = P_END; fact[i] = F_NEVER :: pst[i] == P_OFFERED || pst[i] == P_COMMITTING -> pst[i] = P_ABORTING :: else -> skip fi }
	:: atomic { toP?[eval(committed),eval(i)] -> toP?eval(committed),eval(i);
		if :: pst[i] == P_COMMITTING -> pst[i] = P_END; fact[i] = F_DONE :: else -> skip fi }
	/* a call gets no answer, the client leaves, the engine fails */
	:: atomic { pst[i] == P_RESERVING || pst[i] == P_HAVE || pst[i] == P_OFFERED || pst[i] == P_SENT -> pst[i] = P_ABORTING }
	:: atomic { pst[i] == P_COMMITTING -> pst[i] = P_ABORTING }
	:: atomic { pst[i] == P_SENT && verdict[i] == V_DONE && nfull(toD) -> toD!commit,i,F_NONE; pst[i] = P_COMMITTING }
	:: atomic { pst[i] == P_SENT && verdict[i] == V_UNCERTAIN -> pst[i] = P_ABORTING }
	/* seal, then the fact: only once everything submitted has its verdict */
	:: atomic { pst[i] == P_ABORTING && !sealed[i] ->
		sealed[i] = true }
	:: atomic { pst[i] == P_ABORTING && sealed[i] && fact[i] == F_NONE && !(fly[i] && verdict[i] == V_NONE) ->
		if :: verdict[i] == V_NONE -> fact[i] = F_NEVER :: verdict[i] == V_DONE -> fact[i] = F_DONE :: verdict[i] == V_UNCERTAIN -> fact[i] = F_UNKNOWN fi }
	:: atomic { pst[i] == P_ABORTING && fact[i] != F_NONE && nfull(toD) -> toD!abort_,i,fact[i]; pst[i] = P_END }
	od
}

/* Network: writes land, verdicts come; calls are lost, repeated, reordered. */
active proctype Net() {
	do
	:: atomic { fly[0] || fly[1] ->
		if :: fly[0] -> h = 0 :: fly[1] -> h = 1 fi;
		if
		/* the bytes land; the acknowledgement makes the verdict Done unless it was Uncertain before */
		:: land(h); fly[h] = false; if :: verdict[h] == V_NONE -> verdict[h] = V_DONE :: else -> skip fi
#ifdef HIDDEN_RETRY
		:: ghost[h] == false -> land(h); ghost[h] = true; fly[h] = false; if :: verdict[h] == V_NONE -> verdict[h] = V_DONE :: else -> skip fi
#endif
		/* a time-out, a reset, a native "failed": the write stays in the air */
		:: verdict[h] == V_NONE -> verdict[h] = V_UNCERTAIN
		fi }
#ifdef HIDDEN_RETRY
	:: atomic { ghost[0] -> land(0); ghost[0] = false }
	:: atomic { ghost[1] -> land(1); ghost[1] = false }
#endif
	:: atomic { nempty(toD) && faults < FAULTS -> faults++; toD?m,h,f; if :: skip :: empty(toD) -> toD!m,h,f; toD!m,h,f fi }
	:: atomic { nempty(toP) && faults < FAULTS -> faults++; toP?m,h; if :: skip :: empty(toP) -> toP!m,h; toP!m,h fi }
	:: atomic { len(toD) == 2 -> toD?m,h,f; toD!m,h,f }
	:: atomic { len(toP) == 2 -> toP?m,h; toP!m,h }
	od
}

/* Crashes. The dead process's writes stay in the air. */
active proctype Crash() {
	do
	:: atomic { crashesD < CRASHES -> crashesD++;
#ifndef PORT_REUSE
		stale[0] = true; stale[1] = true;
#endif
		page = FREE; gate = false;
		dst[0] = D_END; tomb[0] = true;
		if :: dst[1] != D_NONE -> dst[1] = D_END; tomb[1] = true :: else -> skip fi;
		post[0] = false; post[1] = false; parked[0] = false; parked[1] = false }
	:: atomic { crashesP < CRASHES -> crashesP++;
		pst[0] = P_END; if :: pst[1] != P_NONE -> pst[1] = P_END :: else -> skip fi;
		fact[0] = F_NONE; fact[1] = F_NONE }
	od
}

init { atomic { run P(0); run P(1) } }

ltl safe { [] !bad }
ltl opens { [] (gate -> <> !gate) }
