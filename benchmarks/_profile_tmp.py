import cProfile, pstats, sys, torch, io
from benchmarks.workloads import SPECS, Workload
from benchmarks.methods import Guided
from benchmarks.eager import TwoPasses, Judged
for name in sys.argv[1:]:
    spec=SPECS[name]; work=Workload(spec,m=spec.m,device="cuda",tiny=False,seed=0)
    g=Guided(work,spec.k,"loop"); 
    for _ in range(3): g.step(True); g.step(False)
    def prof(f,n=30):
        f(); torch.cuda.synchronize(); pr=cProfile.Profile(); pr.enable()
        for _ in range(n): f()
        torch.cuda.synchronize(); pr.disable(); s=io.StringIO(); pstats.Stats(pr,stream=s).sort_stats("tottime").print_stats(28); print(s.getvalue()[:4500])
    print("=====",name,"plain"); prof(lambda:g.step(False))
    if name=="wrn22":
        print("===== refresh loop"); prof(lambda:g.step(True),10)
        b=Guided(work,spec.k,"batched"); b.step(True)
        print("===== refresh batched"); prof(lambda:b.step(True),10)
        j=Judged(work,spec.k); print("===== judged"); prof(lambda:j.step(True),20)
